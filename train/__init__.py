"""Stage 2: the masked ego-exo autoencoder, trained from the cache."""
