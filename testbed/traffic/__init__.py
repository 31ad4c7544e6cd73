"""Load for simulated or real engines: closed loop at a concurrency, as for the published tables, or open loop at a rate."""
