"""``kubectl dflash``: what the person who operates DFlashDeployments types. ``replay`` is also a program of its own."""
