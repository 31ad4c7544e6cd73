"""What the operator costs, measured on the test bed."""
