// The parameters of Conv; those of ConvTranspose are in conv/phases.cuh.
#pragma once
#include "conv/problem.cuh"

template <class Index, int NDIM> struct ConvParams {
    Correlation<Index, NDIM> common;
    Taps<Index, NDIM> taps;
};
