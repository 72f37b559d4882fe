"""Functions of other libraries under their own names and signatures, for code that has lost them."""
