package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/nodes"
)

func imageCommand() *cobra.Command {
	command := &cobra.Command{Use: "image", Short: "Give the nodes of a lab container images"}
	command.AddCommand(imageLoadCommand())
	return command
}

func imageLoadCommand() *cobra.Command {
	var name, as string
	command := &cobra.Command{
		Use: "load FILE...", Short: "Load images into the container runtime of each node",
		Long: "Load images into the container runtime of each kubelet node. FILE is an archive: an OCI image layout as a tar, as\n" +
			"`make images ARGS=\"-archives dist/archives\"` writes it, or the output of `docker save`. With --as, FILE is a static program,\n" +
			"which becomes the only file of an image of that name. The images last as long as the lab.\n\n" +
			"Pods of the lab have no network but that of their node. There, the API server is at status.hostIP, port 6443.",
		Example: "  belay-lab image load dist/archives/belay-controller.tar\n" +
			"  belay-lab image load --as lab.belay.dev/csi-attacher:v1 \"$(belay-lab build --print)/csi-attacher\"",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usage.Errorf("image load wants an archive, such as: belay-lab image load dist/archives/belay-controller.tar")
			case as != "" && len(args) > 1:
				return usage.Errorf("--as names one image, of one program, but there are %d", len(args))
			case as != "":
				return checkImageName(as)
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			lab, err := cluster.Find(name)
			if err != nil {
				return err
			}
			for _, file := range args {
				if err := loadImage(command, lab, file, as); err != nil {
					return err
				}
			}
			return nil
		},
	}
	nameFlag(command, &name)
	command.Flags().StringVar(&as, "as", "", "name of the image that is made of the program FILE, such as lab.belay.dev/csi-attacher:v1; give it a tag other than latest, so that the kubelet does not pull it")
	return command
}

// checkImageName refuses names under which the kubelet would not look for the image, or would pull it.
func checkImageName(name string) error {
	parsed, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return usage.Errorf("--as=%s: %w", name, err)
	}
	tagged, ok := parsed.(reference.Tagged)
	if !ok || tagged.Tag() == "latest" || parsed.String() != name {
		return usage.Errorf("--as is %s, but must be a whole name with a tag other than latest, such as lab.belay.dev/NAME:v1", name)
	}
	return nil
}

func loadImage(command *cobra.Command, lab *cluster.Remote, file, as string) (err error) {
	archive, err := filepath.Abs(file)
	if err != nil {
		return fmt.Errorf("load %s: %w", file, err)
	}
	switch info, err := os.Stat(archive); {
	case err != nil:
		return fmt.Errorf("load %s: %w", file, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("load %s: it is no file: `make images ARGS=\"-archives dist/archives\"` writes archives", file)
	}
	if as != "" {
		packed, err := os.CreateTemp("", "belay-lab-image-*.tar")
		if err != nil {
			return fmt.Errorf("pack %s: %w", file, err)
		}
		defer func() { _ = os.Remove(packed.Name()) }()
		if err := errors.Join(nodes.PackProgram(packed, as, archive), packed.Close()); err != nil {
			return err
		}
		archive = packed.Name()
	} else if err := nodes.CheckArchive(archive); err != nil {
		return fmt.Errorf("load %s: %w; with --as, FILE is a static program", file, err)
	}
	say(command.ErrOrStderr(), "Loading %s ...\n", file)
	if err := lab.LoadImage(command.Context(), archive); err != nil {
		return err
	}
	say(command.OutOrStdout(), "Loaded %s on all nodes.\n", file)
	return nil
}
