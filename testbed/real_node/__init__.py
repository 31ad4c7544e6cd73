"""One real node (containerd, kubelet, kube-proxy, cluster DNS) beside the simulated ones, in namespaces of its own."""
