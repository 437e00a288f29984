package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// imageWithin bounds how long one node may take for an archive.
const imageWithin = 5 * time.Minute

// LoadImage gives the container runtimes of all nodes the images of an archive: an OCI image layout or what `docker save` writes, as a
// tar. The images last as long as the lab. It returns an error that names the nodes that did not take them, such as those without power.
func (c *Cluster) LoadImage(ctx context.Context, archive string) error {
	if c.options.NodeKind != NodeKindKubelet {
		return fmt.Errorf("nodes of the kind %q run no containers: start the lab with --nodes %s", c.options.NodeKind, NodeKindKubelet)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, imageWithin, fmt.Errorf("it took longer than %v", imageWithin))
	defer cancel()
	names := c.options.nodeNames()
	errs := make([]error, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() { errs[i] = c.loadImage(ctx, name, archive) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func (c *Cluster) loadImage(ctx context.Context, name, archive string) error {
	node := c.Node(name)
	switch {
	case node == nil || !c.IsOn(name):
		return fmt.Errorf("load %s on %s: the node has no power: switch it on, and load it again", archive, name)
	case slices.Contains(c.frozenNodes(), name):
		return fmt.Errorf("load %s on %s: the node is frozen: thaw it, and load it again", archive, name)
	}
	return node.LoadImage(ctx, archive)
}

// LoadImage gives the nodes the images of an archive, see Cluster.LoadImage.
func (r *Remote) LoadImage(ctx context.Context, archive string) error {
	return r.ask(ctx, http.MethodPost, "/image", archive, nil)
}
