"""Images that do not feel each other: where a batch is in the values of a model, and which nodes keep it apart."""
