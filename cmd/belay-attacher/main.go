// Command belay-attacher attaches and detaches the volumes of one CSI driver. It replaces the csi-attacher container of
// the driver's Deployment and accepts its flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/attacher"
	"belay.dev/belay/internal/heap"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/usage"
)

// version is set at build time.
var version = "unknown"

// growth limits the heap of a sidecar, and the garbage collections during a burst of attaches and while many volumes are compared.
var growth = heap.Growth{Room: 16 << 20, Least: 40}

func main() {
	heap.Tune(growth, os.Getenv("GOGC"))
	gates := featuregate.NewFeatureGate()
	if err := logsapi.AddFeatureGates(gates); err != nil {
		panic(err)
	}
	logging := logsapi.NewLoggingConfiguration()
	logsapi.AddGoFlags(logging, flag.CommandLine)
	logs.InitLogs()
	options := attacher.RegisterFlags()
	options.Version = version
	flag.Usage = printUsage
	if exitCode, ok := attacher.ParseFlags(os.Args[1:]); !ok {
		os.Exit(exitCode)
	}
	exitOn(usage.Wrap(logsapi.ValidateAndApplyWithOptions(logging, &logsapi.LoggingOptions{ErrorStream: printable.Stderr, InfoStream: printable.Stdout}, gates)), "Logging flags are not valid")
	log.SetLogger(kube.LimitLog(klog.Background()))
	if options.Common.ShowVersion {
		_, _ = fmt.Fprintln(printable.Stdout, os.Args[0], usage.Version(version))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal kills the process
	klog.Background().Info("Starting belay-attacher", "version", version)
	err := attacher.RunSidecar(ctx, options)
	if errors.Is(err, attacher.ErrShutDown) {
		klog.Background().Info("Shut down")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1) // as csi-attacher does with leader election
	}
	exitOn(err, "belay-attacher failed")
	klog.Flush()
}

// exitOn exits if there is an error.
func exitOn(err error, message string) {
	if err != nil {
		klog.Background().Error(err, message)
		klog.FlushAndExit(klog.ExitFlushTimeout, usage.Status(err))
	}
}
