"""What may stand in each kind of configuration file, declared once: one module for each kind."""
