"""What an attention function really computes. `conform.py` is the way in."""
