// Ring collectives over point-to-point messages, chunked so that summing overlaps transfer. One implementation for
// every transport; bytes are counted where they are sent. A group made for its library's collectives has those made by
// it instead, for the same results up to the order of sums, and the ring's bytes counted ("algorithm bytes").
#pragma once

#include <cstdint>
#include <span>

#include "impl/base/real.h"
#include "impl/comm/communicator.h"

namespace lamina {

// Real is float or double; sums are made in Real, by rings in ring order, so that the same call gives the same bits on
// every rank and every time (of a library all that is asked is that an all_reduce gives all ranks the same). `values`
// of the whole-buffer calls has a multiple of size() elements (the caller pads); rank r owns part r, elements
// [r·n/size, (r+1)·n/size). Wire is what travels: Real itself, or Bf16 or Fp16 for float, to which a partial sum is
// then rounded before each of its hops; no library does that, so there it throws Error.

// Every rank ends with the sum. Sends 2(size−1)/size · bytes on the wire.
template <class Real, class Wire = Real>
void all_reduce(Communicator& group, std::span<Real> values, TrafficTag tag);

// Rank r's part of `values` ends as the sum of everybody's part r; the other parts are overwritten (undefined).
// Sends (size−1)/size · bytes on the wire.
template <class Real, class Wire = Real>
void reduce_scatter(Communicator& group, std::span<Real> values, TrafficTag tag);

// On entry rank r's part of `values` is its contribution; on return all parts are everybody's. Sends
// (size−1)/size · bytes. Real may be Bf16 or Fp16 too.
template <class Real>
void all_gather(Communicator& group, std::span<Real> values, TrafficTag tag);

// A sum of any number of elements (no padding asked), for a few control values: each rank's contribution travels
// round the ring, in every group, and all ranks add in rank order. Sends (size−1) · bytes.
void all_sum(Communicator& group, std::span<double> values, TrafficTag tag);

}  // namespace lamina
