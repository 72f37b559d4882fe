"""Whether a GPU's instructions do what gpuconv's kernels, and the emulator they are tested in, take for granted.

    python -m benchmarks.probes --rows FILE [--bits FILE.npz] [--seconds S]

Each probe is a row. It runs an instruction as the kernels' own headers write it, and compares every bit that comes with
plain NumPy, written from NVIDIA's PTX manual. A million sums of tensor cores are recorded besides.

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
