// Writes each case of the scheduler's own table of selectors as a line of JSON, with what the scheduler gets. It is built inside
// of a copy of k8s.io/dynamic-resource-allocation, in cel.
package cel

import (
	"encoding/json"
	"os"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2/ktesting"
)

func TestWrittenTable(t *testing.T) {
	file, err := os.Create(os.Getenv("NETCLAIM_CEL_TABLE"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := json.NewEncoder(file)
	compiler := GetCompiler(Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})
	for name, scenario := range testcases {
		_, ctx := ktesting.NewTestContext(t)
		line := struct {
			Name       string             `json:"name"`
			Driver     string             `json:"driver"`
			Device     resourceapi.Device `json:"device"`
			Expression string             `json:"expression"`
			// yes, no or error.
			Answer string `json:"answer"`
			Error  string `json:"error"`
		}{Name: name, Driver: scenario.driver, Expression: scenario.expression, Answer: "error"}
		line.Device = resourceapi.Device{
			Name: "device", AllowMultipleAllocations: scenario.allowMultipleAllocations, Attributes: scenario.attributes, Capacity: scenario.capacity,
		}
		compiled := compiler.CompileCELExpression(scenario.expression, Options{})
		if compiled.Error != nil {
			line.Error = compiled.Error.Error()
		} else {
			matches, _, err := compiled.DeviceMatches(ctx, Device{
				AllowMultipleAllocations: scenario.allowMultipleAllocations, Attributes: scenario.attributes, Capacity: scenario.capacity, Driver: scenario.driver,
			})
			switch {
			case err != nil:
				line.Error = err.Error()
			case matches:
				line.Answer = "yes"
			default:
				line.Answer = "no"
			}
		}
		if err := lines.Encode(line); err != nil {
			t.Fatal(err)
		}
	}
}
