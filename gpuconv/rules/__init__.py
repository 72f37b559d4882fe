"""What every call is checked against: integers in, frozen geometries out; no arrays but for the cases."""
