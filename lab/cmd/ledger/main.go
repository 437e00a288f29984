// Command ledger is the program that the lab's pods run.
package main

import (
	"fmt"
	"os"

	"belay.dev/belay/lab/ledger"
)

func main() {
	if err := ledger.Command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "ledger:", err)
		os.Exit(ledger.ExitCode(err))
	}
}
