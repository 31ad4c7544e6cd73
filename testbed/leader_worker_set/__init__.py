"""LeaderWorkerSet in the test bed: a stand-in for its controller, or the real one."""
