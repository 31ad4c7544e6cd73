"""Fetches weights from a Hugging Face hub into storage that engine pods mount. Runs as ``dflash-fetch`` in init containers and Jobs."""
