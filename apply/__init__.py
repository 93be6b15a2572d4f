"""Any video through the model of a run: its embeddings, its alignment with another, the two side by side."""
