module longshore.dev/tools/kubectl

go 1.23

require k8s.io/kubectl v0.32.4
