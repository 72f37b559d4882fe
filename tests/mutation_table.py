TESTS = {"_memory.py": ("test_out.py", "test_errors.py"), "*": ("test_layout.py",)}
