module netclaim.dev/tests/cluster/pause

go 1.25
