"""The paired probe: fixed greedy prompts that the operator itself sends to engine pods."""
