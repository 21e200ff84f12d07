"""From a model of the user's library to a `VLM`: importers, preprocessing, class embeddings."""
