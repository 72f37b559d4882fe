"""Check on a GPU that instructions behave as gpuconv's kernels, and the emulator that tests them, assume.

    python -m benchmarks.probes --rows FILE [--bits FILE.npz] [--seconds S]

Each probe is a row. It runs an instruction through the kernels' own headers and compares every bit of the result with
NumPy code written from NVIDIA's PTX manual. About a million tensor-core sums are also recorded, since PTX leaves their
rounding open.

===================================================  ============================================================
Instructions of kernels_cu                           Probes
===================================================  ============================================================
ld.global, st.global, ld.shared, st.shared, mov      loads and stores of every width; tickets and loads past L1
shfl, prmt                                           lanes and bytes
max.NaN                                              max.NaN
cvt.rna.tf32                                         cvt.rna.tf32
abs, add, setp                                       none: plain arithmetic
atom                                                 atomicMax; tickets and loads past L1
ldmatrix                                             ldmatrix
cp.async.ca, cp.async.cg                             cp.async; cp.async of nothing, from no address
cp.async.commit_group, cp.async.wait_group           cp.async in groups
bar.sync, bar.arrive                                 named barriers
mma.sync                                             mma.sync …; sums of mma.sync …; places of sums of mma.sync …
mbarrier, fence                                      mbarrier: a ring of ordinary stores, of TMA copies
setmaxnreg                                           setmaxnreg
cp.async.bulk.tensor                                 TMA boxes …, TMA im2col …
prefetch.tensormap                                   none: a hint, which changes no result
griddepcontrol                                       none: `benchmarks.chained` compares bits
wgmma                                                wgmma …; sums of wgmma …; steps of …; places of sums of …
===================================================  ============================================================

No kernel uses stmatrix, redux, or copies from shared memory by TMA.
"""
