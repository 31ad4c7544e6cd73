"""A node whose pods are processes of this machine: what a kubelet does for an engine, without images and containers."""
