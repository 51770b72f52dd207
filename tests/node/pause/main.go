// Command pause is the sandbox image of the test clusters: it holds the pod's
// namespaces and ends at once when told to.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}
