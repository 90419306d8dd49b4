"""Eyes on a torch model that is running. `watch.py` is the way in, and says what lies where; nothing here is imported
before it is asked for, since most of it needs torch."""
