"""Drop-in replacements for functions of other libraries, under their original names and signatures."""
