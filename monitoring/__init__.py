"""Recording rules, alerts and dashboards, written in Python; what they generate is committed and checked against drift."""
