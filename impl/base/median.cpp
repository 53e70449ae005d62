#include "impl/base/median.h"

#include <algorithm>
#include <vector>

#include "impl/base/error.h"

namespace lamina {

double median(std::span<const double> samples) {
  LAMINA_CHECK(!samples.empty(), "median of {} samples", samples.size());
  std::vector<double> values(samples.begin(), samples.end());
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace lamina
