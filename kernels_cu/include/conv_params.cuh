// The parameters of Conv; those of ConvTranspose are in phases.cuh.
#pragma once
#include "correlation.cuh"

template <class Index, int NDIM> struct ConvParams {
    Correlation<Index, NDIM> common;
    Taps<Index, NDIM> taps;
};
