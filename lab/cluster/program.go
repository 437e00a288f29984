package cluster

// StartProgram starts a program of the caller's as a component of a bare lab. One that exits is not started again.
func (c *Cluster) StartProgram(component, path string, args ...string) error {
	return c.launchOnce(c.specs.component(component, path, args...))
}
