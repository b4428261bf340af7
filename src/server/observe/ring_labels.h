#pragma once

#include <span>
#include <string>

namespace millrace::server {

/// Appends the metrics of several rings as one text in Prometheus' form: each family once, each sample with the label
/// ring="i". `texts` has the metrics of ring i at index i, as MetricWriter writes them.
void append_ring_labelled(std::string& out, std::span<const std::string> texts);

}  // namespace millrace::server
