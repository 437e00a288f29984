// Command kubectl-belay is the kubectl plugin that explains why pods wait for their volumes.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubeconfigs of clouds

	"belay.dev/belay/internal/kubectl"
)

// version is set at build time.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills the process
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	err := kubectl.NewCommand(streams, version).ExecuteContext(ctx)
	stop()
	if err != nil && !kubectl.Printed(err) {
		fmt.Fprintln(os.Stderr, "error:", err)
	}
	os.Exit(kubectl.Status(err))
}
