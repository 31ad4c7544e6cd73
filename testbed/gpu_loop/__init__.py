"""The whole loop on a real engine: operator, control plane and a GPU of this machine, without containers."""
