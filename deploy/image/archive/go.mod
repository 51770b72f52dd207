module netclaim.dev/deploy/image/archive

go 1.25
