#include "app/head_pool_host.h"

#include "cluster/node_link.h"

namespace millrace::app {

Result<cluster::Loaded> HeadPoolHost::measure() {
  if (node_.made()) {
    on_change_(nullptr);
    node_.destroy_stages();
  }
  return loaded_report(node_, stage_);
}

Result<sched::LocalStages*> HeadPoolHost::stages(const cluster::Assignment& assignment, cache::PoolSizes pages,
                                                 const std::string& fingerprint) {
  RETURN_IF_ERROR(node_.make_stages(control_, cluster::ring_shape(assignment, config_, pages), fingerprint));
  on_change_(&node_.stages());
  return &node_.stages();
}

}  // namespace millrace::app
