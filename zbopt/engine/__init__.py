"""An engine in a process of its own: what it is asked, what it models, and the watch over it."""
