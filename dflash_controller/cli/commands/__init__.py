"""One module for each command of ``kubectl dflash``; each has its click command as ``command``."""
