"""What the functions in FlashAttention's shape have in common: their arguments, the call, and caches."""
