// Command dashboards writes the Grafana dashboards of belay as JSON into the folder that it is given.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: dashboards FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

func write(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, make := range []func() (dashboard.Dashboard, error){plane, attacher, nodes, volume, recovery} {
		d, err := make()
		if err != nil {
			return err
		}
		text, err := json.MarshalIndent(d, "", " ")
		if err != nil {
			return fmt.Errorf("dashboard %s: %w", *d.Uid, err)
		}
		if err := os.WriteFile(filepath.Join(folder, *d.Uid+".json"), append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}
