"""A closed-loop benchmark of a DFlashDeployment: the load, what is measured of it, tables and files."""
