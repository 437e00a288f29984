// Command kubectl-belay is the kubectl plugin that explains why pods wait for their volumes.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubeconfigs of clouds
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"belay.dev/belay/internal/kubectl"
	"belay.dev/belay/internal/printable"
)

// version is set at build time.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills the process
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(printable.Stderr)))) // of client-go
	command := kubectl.NewCommand(streams, version)
	err := command.ExecuteContext(ctx)
	stop()
	if err != nil && !kubectl.Printed(err) {
		command.PrintErrln("error:", err)
	}
	os.Exit(kubectl.Status(err))
}
