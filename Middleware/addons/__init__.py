"""What is optional: each folder is one add-on, which nothing outside imports."""
