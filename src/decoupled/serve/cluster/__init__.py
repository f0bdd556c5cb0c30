"""The same index and engine on several processes or machines: `build` encodes, `fleet` serves."""
