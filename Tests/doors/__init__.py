"""Every documented way to start the server, used as a client uses it.

``rows.py`` is the table: one server for each row. Each of its clients makes all calls of ``calls.py``, and every answer
must be what the row promises. ``python -m Tests.doors`` prints the result of each cell.
"""
