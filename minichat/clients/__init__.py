"""The engine as the screen sees it: one small protocol, and who fulfils it."""
