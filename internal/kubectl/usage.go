package kubectl

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/usage"
)

// oneObject checks the number of arguments of a command that takes one object.
func oneObject(of string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 1 || len(args) == 2 {
			return nil
		}
		return usage.Errorf("name one object, %s; see %q", of, c.CommandPath()+" --help")
	}
}

// helpCommand prints the help of a command, and fails for one that does not exist.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [command]", Short: "Print the help of a command",
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usage.Errorf("there is no command %q; see \"kubectl belay --help\"", strings.Join(args, " "))
			}
			return c.Help()
		},
	}
}

func (p *plugin) versionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: usage.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(p.Out, "kubectl belay version "+usage.Version(version))
			return err
		},
	}
}

// checkNamespace is an error for a name that no namespace can have.
func checkNamespace(name string) error {
	if wrong := validation.IsDNS1123Label(name); name != "" && len(wrong) > 0 {
		return usage.Errorf("--namespace %q is no name of a namespace: %s", name, wrong[0])
	}
	return nil
}

// missingNamespace is an error if the namespace does not exist. A reader that may not know that gets none.
func (p *plugin) missingNamespace(ctx context.Context, name string) error {
	config, err := p.flags.ToRESTConfig()
	if err != nil || name == "" {
		return err
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if _, err := clients.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return fmt.Errorf("namespace %s does not exist", name)
	}
	return nil
}

// causeWithin bounds the question why the API server did not answer. A variable for the tests.
var causeWithin = 2 * time.Second

// whyNot asks the API server for its version, to learn why it did not answer.
func (p *plugin) whyNot(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, causeWithin)
	defer cancel()
	config, err := p.flags.ToRESTConfig()
	if err == nil {
		var clients *kubernetes.Clientset
		if clients, err = kubernetes.NewForConfig(config); err == nil {
			err = clients.RESTClient().Get().AbsPath("/version").Do(ctx).Error()
		}
	}
	if err == nil {
		return "the API server did not answer in time"
	}
	return err.Error()
}

// slow is how long a command waits for the API server before it says so.
const slow = 5 * time.Second

// waitsForServer says on standard error that the API server takes long, until the returned function is called.
func (p *plugin) waitsForServer() (answered func()) {
	host := "the API server"
	if config, err := p.flags.ToRESTConfig(); err == nil {
		host += " " + config.Host
	}
	said := make(chan struct{})
	timer := time.AfterFunc(slow, func() {
		defer close(said)
		_, _ = fmt.Fprintf(p.ErrOut, "Waiting for %s to answer ...\n", host)
	})
	return sync.OnceFunc(func() {
		if !timer.Stop() {
			<-said // not in the midst of what follows
		}
	})
}
