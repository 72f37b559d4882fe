"""Implicit GEMM on Hopper (sm_90a) with wgmma tensor-core instructions and TMA loads."""
