"""Recording rules, alerts and dashboards, written in Python. The generated files are committed and checked for drift."""
