"""Load for engines, simulated or real: closed loop at a concurrency, as the published tables were measured, or open loop at a rate."""
